"""What never came: conversations as Genesys knows them, compared with the attendance that the ledger keeps."""
