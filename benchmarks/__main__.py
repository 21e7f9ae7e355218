"""`python -m benchmarks`: run the producer's benchmark."""

from benchmarks.producer import main

main()
