//! Further names of the same functions in the C library, to which programs and libraries are linked.

use core::arch::naked_asm;

use super::{clone, descriptors, io, poll, processes, shell, sockets};

macro_rules! alias {
    ($($alias:ident = $function:path;)*) => {
        $(#[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $alias() {
            naked_asm!("jmp {function}", function = sym $function)
        })*
    };
}

alias! {
    __clone = clone::clone;
    __close = descriptors::close;
    __connect = sockets::connect;
    __dup2 = descriptors::dup2;
    __fcntl = descriptors::fcntl;
    __poll = poll::poll;
    __read = io::read;
    __select = poll::select;
    __send = io::send;
    __vfork = processes::vfork;
    __write = io::write;
    _IO_fclose = descriptors::fclose;
    _IO_fdopen = processes::fdopen;
    _IO_popen = shell::popen;
}
