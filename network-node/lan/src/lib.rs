//! LAN ports: AF_PACKET, memory, faulty.
