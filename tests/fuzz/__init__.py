"""A hostile fuzzer: `python -m tests.fuzz --seconds 60 --seed 1`, or `make fuzz`.

It attacks an emulator in a process of its own with requests of every API and version and with damaged captures of
several clients, before and after the login. It looks for crashes, lines of level ERROR, stalls of other clients,
memory, and a data directory that does not open afterwards. A failure is written as a file that can be replayed. Open
`campaign.py` first.
"""
