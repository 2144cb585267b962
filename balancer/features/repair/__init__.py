"""What is wrong, and what an operator may do about it. Called by the command line; changes nodes only while nobody
leads, or through the leader.

`doctor` compares nodes with the directory and names each repair; `recover` takes an older directory to the nodes as
they are; `revive` gives a tablet that is nowhere an owner. `command` says in numbers what would be lost, first.
"""
