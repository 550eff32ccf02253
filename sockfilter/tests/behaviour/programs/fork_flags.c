/* One thread sets flags of a connection while another forks: they stay as they were set. */
#include "beside_fork.h"

static int nonblocks(int fd) { return (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0; }
static void *acts(void *unused) {
    for (int n = 0; !over; n++) {
        int on = n % 2, fd = e.client;
        if (n % 4 < 2) strange += fcntl(fd, F_SETFL, O_RDWR | (on ? O_NONBLOCK : 0));
        else strange += ioctl(fd, FIONBIO, &on);
        strange += nonblocks(fd) != on;
        if (n % 4 < 2) strange += fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0);
        else strange += ioctl(fd, on ? FIOCLEX : FIONCLEX);
        strange += fcntl(fd, F_GETFD) != on;
        cycles++;
    }
    return NULL;
}

int main(void) { beside_forks(acts, 200); }
