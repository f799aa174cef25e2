"""The arrays among the arguments: where they stand, and who shares their buffers.

walk, placed     the quick look at the arguments, by the positions at which arrays and dead places were found
wanted           the leaves that are asked about, and where they were the last time
executions       who shares a buffer with whom, by age
buffers          the same by address
alive            every array that there is, and whether looking at them costs more than to copy
"""
