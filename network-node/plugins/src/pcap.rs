//! The pcap file format with nanoseconds (draft-ietf-opsawg-pcap), written into memory.

/// Length of the file header.
pub const FILE_HEADER_LEN: usize = 24;
/// Length of a record's header.
pub const RECORD_HEADER_LEN: usize = 16;

/// Nanosecond time stamps.
const MAGIC: u32 = 0xa1b2_3c4d;
/// LINKTYPE_ETHERNET.
const LINK_TYPE: u32 = 1;

/// Returns the header of a file whose records have at most `snap_len` bytes of a packet.
pub fn file_header(snap_len: u32) -> [u8; FILE_HEADER_LEN] {
    let mut header = [0; FILE_HEADER_LEN];
    header[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[4..6].copy_from_slice(&2u16.to_le_bytes());
    header[6..8].copy_from_slice(&4u16.to_le_bytes());
    header[16..20].copy_from_slice(&snap_len.to_le_bytes());
    header[20..24].copy_from_slice(&LINK_TYPE.to_le_bytes());
    header
}

/// Returns the header of a record: the time since 1970 in nanoseconds, the bytes that follow, and the packet's length.
pub fn record_header(time_ns: u64, included: u32, original: u32) -> [u8; RECORD_HEADER_LEN] {
    let mut header = [0; RECORD_HEADER_LEN];
    header[0..4].copy_from_slice(&((time_ns / 1_000_000_000) as u32).to_le_bytes());
    header[4..8].copy_from_slice(&((time_ns % 1_000_000_000) as u32).to_le_bytes());
    header[8..12].copy_from_slice(&included.to_le_bytes());
    header[12..16].copy_from_slice(&original.to_le_bytes());
    header
}
