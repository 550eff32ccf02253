/* Flags of descriptors and of what they refer to. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int d = MUST(dup(e.server));
    char b;
    TRY(fcntl(e.server, F_GETFL) & (O_ACCMODE | O_NONBLOCK));
    TRY(fcntl(e.server, F_SETFL, O_NONBLOCK));
    TRY(fcntl(d, F_GETFL) & (O_ACCMODE | O_NONBLOCK));
    TRY(read(d, &b, 1));
    TRY(fcntl(d, F_SETFL, 0));
    TRY(recv(e.server, &b, 1, MSG_DONTWAIT));
    TRY(fcntl(e.server, F_GETFD));
    TRY(fcntl(e.server, F_SETFD, FD_CLOEXEC));
    TRY(fcntl(e.server, F_GETFD));
    TRY(fcntl(d, F_GETFD));
    int on = 1;
    TRY(ioctl(d, FIONBIO, &on));
    TRY(read(e.server, &b, 1));
    TRY(fcntl(e.server, F_GETFL) & O_NONBLOCK);
    TRY(ioctl(d, FIOCLEX));
    TRY(fcntl(d, F_GETFD));
    TRY(fcntl(d, F_SETOWN, getpid()));
    TRY(fcntl(d, F_GETOWN) == getpid());
    TRY(fcntl(d, 9999));
}
