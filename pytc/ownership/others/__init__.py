"""Who else may look at what is about to be donated, or raise before the result is stored.

watchers         all of them: profilers, debuggers, hooks, other threads
service_threads  libraries' threads, which wait for work and never read a program's data
waiting_threads  threads that wait until another wakes them
signal_handlers  handlers of signals that only set flags
exits            managers of `with` statements that never end an exception
compared         whether JAX runs users' code when it looks up what it has compiled
collector        the garbage collector, and its callbacks
"""
