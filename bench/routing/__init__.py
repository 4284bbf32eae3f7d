"""Where requests go: the same sessions behind trimtab, behind other routers, and pinned by hand."""
