//! The shm provider, owned separately from the endpoint that uses it: a forked child must reach the provider
//! itself to abandon it, and the filter must know the provider's descriptors.

use std::os::fd::RawFd;
use std::ptr::NonNull;

use csp_vi::shm::ShmProvider;
use csp_vi::{
    Armed, BufferId, Completion, Counters, Event, Provider, RequestId, ViAddress, ViConfig, ViError, ViId,
    Wake,
};

/// Owns a provider.
pub struct Owner(NonNull<ShmProvider>);

/// The same provider, for an endpoint. Must not be used after its owner is gone.
pub struct Lent(NonNull<ShmProvider>);

// SAFETY: both live in one `Link` behind the engine's lock, so that one thread at a time accesses the
// provider.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Send for Lent {}

impl Owner {
    /// A provider whose descriptors are numbered from `floor` on.
    pub fn new(floor: RawFd) -> Result<Self, ViError> {
        let provider = Box::new(ShmProvider::with_descriptor_floor(floor)?);
        Ok(Owner(NonNull::from(Box::leak(provider))))
    }

    /// The provider for an endpoint, which must be dropped before this.
    pub fn lend(&self) -> Lent {
        Lent(self.0)
    }

    /// Every descriptor that the provider owns.
    pub fn descriptors(&self, into: &mut Vec<RawFd>) {
        // SAFETY: the pointer is valid while the owner lives, and no call through `Lent` is running.
        unsafe { self.0.as_ref() }.descriptors(into);
    }

    /// Abandons the provider in a forked child; nothing is sent to its peers.
    pub fn abandon_after_fork(self) {
        // SAFETY: `new` leaked exactly this box, and `self` is consumed, so no other use follows.
        unsafe { Box::from_raw(self.0.as_ptr()) }.abandon_after_fork();
    }
}

impl Lent {
    fn get(&self) -> &ShmProvider {
        // SAFETY: the owner outlives this, and the engine's lock is held.
        unsafe { self.0.as_ref() }
    }

    fn get_mut(&mut self) -> &mut ShmProvider {
        // SAFETY: as above; `&mut self` excludes other calls through this value.
        unsafe { self.0.as_mut() }
    }
}

impl Provider for Lent {
    fn name(&self) -> &'static str {
        self.get().name()
    }

    fn listen(&mut self, address: &ViAddress) -> Result<(), ViError> {
        self.get_mut().listen(address)
    }

    fn connect(
        &mut self,
        address: &ViAddress,
        config: ViConfig,
        private_data: &[u8],
    ) -> Result<ViId, ViError> {
        self.get_mut().connect(address, config, private_data)
    }

    fn accept(&mut self, request: RequestId, config: ViConfig, private_data: &[u8]) -> Result<ViId, ViError> {
        self.get_mut().accept(request, config, private_data)
    }

    fn reject(&mut self, request: RequestId) -> Result<(), ViError> {
        self.get_mut().reject(request)
    }

    fn post_send(
        &mut self,
        vi: ViId,
        wr_id: u64,
        immediate: u32,
        gather: &[&[u8]],
        signalled: bool,
    ) -> Result<(), ViError> {
        self.get_mut().post_send(vi, wr_id, immediate, gather, signalled)
    }

    fn post_recv(&mut self, vi: ViId, buffer: BufferId) -> Result<(), ViError> {
        self.get_mut().post_recv(vi, buffer)
    }

    fn read(&self, vi: ViId, buffer: BufferId, offset: usize, into: &mut [u8]) -> Result<usize, ViError> {
        self.get().read(vi, buffer, offset, into)
    }

    fn poll(&mut self) -> Option<Completion> {
        self.get_mut().poll()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.get_mut().poll_event()
    }

    fn arm(&mut self) -> Result<Armed, ViError> {
        self.get_mut().arm()
    }

    fn wake(&self, into: &mut Vec<Wake>) {
        self.get().wake(into);
    }

    fn wake_generation(&self) -> u64 {
        self.get().wake_generation()
    }

    fn disconnect(&mut self, vi: ViId) -> Result<(), ViError> {
        self.get_mut().disconnect(vi)
    }

    fn abort(&mut self, vi: ViId) -> Result<(), ViError> {
        self.get_mut().abort(vi)
    }

    fn unconfirmed(&self, vi: ViId, report: &mut dyn FnMut(u32, &[u8])) -> Result<(), ViError> {
        self.get().unconfirmed(vi, report)
    }

    fn counters(&self) -> Counters {
        self.get().counters()
    }
}
