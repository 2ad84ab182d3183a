//! Asks for memory before it is read. Decoding reads weights once, from memory, in short runs of many rows, which machines do
//! not foresee.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "an instruction"))]

/// Bytes that come at a time.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Asks for what lies `ahead` bytes behind the beginning of `bytes`, as many of them. It need not be there.
#[inline]
pub(super) fn prefetch(bytes: &[u8], ahead: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = bytes.as_ptr().wrapping_add(ahead);
        let first = start.wrapping_sub(start.addr() % LINE);
        for at in (0..bytes.len() + start.addr() % LINE).step_by(LINE) {
            // SAFETY: any machine of this kind has the instruction, and it reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(at).cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, ahead);
}
