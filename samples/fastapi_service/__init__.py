"""An online shop: a FastAPI service whose orders and workflow runs commit together, and whose pages watch runs live."""
