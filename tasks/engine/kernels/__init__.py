"""Kernels of the CPU in C++: products, attention and whole steps. `../compute/native` calls
them."""
