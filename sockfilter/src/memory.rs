//! Addresses that a program passes to a call.

/// The lowest address that a program can map (vm.mmap_min_addr is at least a page wherever it is set), and
/// the end of its address space.
const LOWEST: usize = 4096;
const END: usize = 1 << 47;

/// Whether an address (null included) lies outside the range that any program can map, so that the kernel
/// returns EFAULT for it. An access to other invalid addresses faults in the program.
#[inline]
pub fn is_unmappable<T>(pointer: *const T) -> bool {
    !(LOWEST..END).contains(&pointer.addr())
}

/// Whether an optional address was passed and lies outside the range that any program can map.
#[inline]
pub fn is_wrong<T>(pointer: *const T) -> bool {
    !pointer.is_null() && is_unmappable(pointer)
}

/// Whether an address lies in the kernel's half: the kernel returns EFAULT for it before it looks at the
/// descriptor's state, also for a length of 0.
#[inline]
pub fn is_kernel_address<T>(pointer: *const T) -> bool {
    pointer.addr().cast_signed() < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_no_program_can_map_are_nowhere() {
        let at = |address: usize| is_unmappable(core::ptr::without_provenance::<u8>(address));
        assert!(at(0) && at(1) && at(4095) && at(1 << 47) && at(usize::MAX));
        assert!(!at(4096) && !at((1 << 47) - 1));
        let kernels = |address: usize| is_kernel_address(core::ptr::without_provenance::<u8>(address));
        assert!(!kernels(0) && !kernels(usize::MAX >> 1) && kernels(1 << 63) && kernels(usize::MAX));
        assert!(!is_wrong(core::ptr::null::<u8>()) && is_wrong(core::ptr::without_provenance::<u8>(1)));
    }
}
