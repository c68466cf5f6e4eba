"""What several tests share: models, files, servers, devices and commands, each named by what it is."""
