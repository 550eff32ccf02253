//! The pcap file format with nanoseconds (draft-ietf-opsawg-pcap), written into memory.

/// Length of the file header.
pub const FILE_HEADER_LEN: usize = 24;
/// Length of a record's header.
pub const RECORD_HEADER_LEN: usize = 16;

/// Magic number of files with nanosecond time stamps.
const MAGIC: u32 = 0xa1b2_3c4d;
/// Nanoseconds per second. The fraction of a time stamp is smaller.
const NANOS_PER_S: u32 = 1_000_000_000;
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

/// Returns the header of a record: the time in nanoseconds since 1970, the number of bytes that follow, and
/// the packet's length.
pub fn record_header(time_ns: u64, included: u32, original: u32) -> [u8; RECORD_HEADER_LEN] {
    let mut header = [0; RECORD_HEADER_LEN];
    header[0..4].copy_from_slice(&((time_ns / 1_000_000_000) as u32).to_le_bytes());
    header[4..8].copy_from_slice(&((time_ns % 1_000_000_000) as u32).to_le_bytes());
    header[8..12].copy_from_slice(&included.to_le_bytes());
    header[12..16].copy_from_slice(&original.to_le_bytes());
    header
}

/// A record of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Time of capture, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Length of the packet.
    pub original: u32,
    /// Its first bytes.
    pub bytes: &'a [u8],
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Parses a file as written by [`file_header`] and [`record_header`]; `None` if it is malformed.
pub fn records(file: &[u8]) -> Option<Vec<Record<'_>>> {
    if number(file, 0)? != MAGIC || file.len() < FILE_HEADER_LEN {
        return None;
    }
    let (mut rest, mut records) = (&file[FILE_HEADER_LEN..], Vec::new());
    while !rest.is_empty() {
        let (seconds, nanos) = (number(rest, 0)?, number(rest, 4).filter(|nanos| *nanos < NANOS_PER_S)?);
        let (included, original) = (number(rest, 8)? as usize, number(rest, 12)?);
        let bytes = rest.get(RECORD_HEADER_LEN..RECORD_HEADER_LEN.checked_add(included)?)?;
        rest = &rest[RECORD_HEADER_LEN + included..];
        let time_ns = u64::from(seconds) * u64::from(NANOS_PER_S) + u64::from(nanos);
        records.push(Record { time_ns, original, bytes });
    }
    Some(records)
}

/// Merges the files of several workers or nodes, ordered by time. Returns `None` if one of them is malformed.
pub fn merge(files: &[Vec<u8>]) -> Option<Vec<u8>> {
    let snap_len = files.iter().filter_map(|file| number(file, 16)).max().unwrap_or(65_535);
    let mut all = Vec::new();
    for file in files {
        all.extend(records(file)?);
    }
    all.sort_by_key(|record| record.time_ns);
    let mut merged = file_header(snap_len).to_vec();
    for record in all {
        let header = record_header(record.time_ns, record.bytes.len() as u32, record.original);
        merged.extend_from_slice(&header);
        merged.extend_from_slice(record.bytes);
    }
    Some(merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(records: &[(u64, &[u8])]) -> Vec<u8> {
        let mut file = file_header(64).to_vec();
        for (time_ns, bytes) in records {
            file.extend_from_slice(&record_header(*time_ns, bytes.len() as u32, 100));
            file.extend_from_slice(bytes);
        }
        file
    }

    #[test]
    fn files_are_merged_by_time() {
        let (one, other) = (file(&[(5, b"a"), (2_000_000_007, b"bc")]), file(&[(6, b"d")]));
        let merged = merge(&[one.clone(), other]).unwrap();
        let seen: Vec<(u64, &[u8])> =
            records(&merged).unwrap().into_iter().map(|record| (record.time_ns, record.bytes)).collect();
        assert_eq!(seen, [(5, &b"a"[..]), (6, b"d"), (2_000_000_007, b"bc")]);
        assert_eq!(merge(&[one[..one.len() - 1].to_vec()]), None);
        assert_eq!(merge(&[b"no file".to_vec()]), None);
    }

    /// In the last representable second, such a time wrapped to 1970.
    #[test]
    fn a_time_stamp_with_more_than_a_second_of_nanoseconds_is_none() {
        let mut file = file(&[(7, b"a")]);
        let nanos = FILE_HEADER_LEN + 4;
        file[nanos..nanos + 4].copy_from_slice(&999_999_999u32.to_le_bytes());
        assert_eq!(merge(core::slice::from_ref(&file)), Some(file.clone()));
        file[nanos..nanos + 4].copy_from_slice(&1_000_000_000u32.to_le_bytes());
        assert_eq!(merge(&[file]), None);
    }
}
