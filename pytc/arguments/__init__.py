"""Arguments as trees of leaves.

leaves          what is traced and what is static
parted          how static leaves, and arrays that are there twice, are kept from JAX
static_objects  what must not be read out of what is static
shardings       what is asked for each leaf
prefix          a pytree prefix, spread over the tree that it is one of
"""
