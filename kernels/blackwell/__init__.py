"""TLX kernels for Blackwell (sm_100a). Importing this needs neither a GPU nor TLX; running a kernel needs both."""
