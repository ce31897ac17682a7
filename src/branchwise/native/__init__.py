"""C that is compiled on this machine at first use: how, and what several kernels include (`*.h`)."""
