"""Problems: goals packaged with their tools and their judge."""
