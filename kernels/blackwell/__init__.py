"""TLX kernels for Blackwell (sm_100a). Importing this package needs neither a GPU nor TLX; running a kernel needs both."""
