"""`python -m benchmarks` is the producer's benchmark."""

from benchmarks.producer import main

main()
