"""What a task does on an executor: encode its rows and write them in the Kafka transaction of one attempt.

Open first: `task_transaction.py`.
"""
