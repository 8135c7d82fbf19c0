"""The vocabulary of Stoker: one Pydantic model per object, and the terms that all rooms share.

Owns names, quantities, objects, conditions, failure categories, the outcome table and the worker's contract.
Never does I/O, reads a clock or knows an event loop. Everything else imports it; it imports nothing of ours.
"""
