"""Run ways of drafting as deployments over network namespaces, and hold bytes back between them."""
