/* SIGIO when something comes (O_ASYNC): refused on accelerated sockets, as nobody could raise it; a socket that had it before it
 * connected stays in the kernel. */
// differs: fcntl(e.server, F_SETFL, O_ASYNC) = 0 | fcntl(e.server, F_SETFL, O_ASYNC): EINVAL | nobody would raise the signal
// differs: fcntl(e.server, F_GETFL) & O_ASYNC ? 1 : 0 = 1 | fcntl(e.server, F_GETFL) & O_ASYNC ? 1 : 0 = 0 | it was refused
// differs: ioctl(e.server, FIOASYNC, &on) = 0 | ioctl(e.server, FIOASYNC, &on): ENOTTY | as of files that raise none
#include "behaviour.h"

static void raised(int signal) {}

int main(void) {
    int on = 1, off = 0;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGIO);
    sigprocmask(SIG_BLOCK, &set, NULL);
    struct ends e = ends();
    TRY(fcntl(e.server, F_SETOWN, getpid()));
    TRY(fcntl(e.server, F_SETFL, O_ASYNC));
    TRY(fcntl(e.server, F_GETFL) & O_ASYNC ? 1 : 0);
    TRY(ioctl(e.server, FIOASYNC, &on));
    TRY(ioctl(e.server, FIOASYNC, &off));
    TRY(fcntl(e.server, F_SETFL, O_NONBLOCK));

    int s = bound(), c = MUST(socket(AF_INET, SOCK_STREAM, 0));
    TRY(fcntl(s, F_SETFL, O_ASYNC));
    TRY(fcntl(c, F_SETFL, O_ASYNC));
    TRY(listen(s, 5));
    struct sockaddr_in a = where(s);
    TRY(connect(c, (struct sockaddr *)&a, sizeof a));
    int server = MUST(accept(s, NULL, NULL));
    TRY(fcntl(c, F_SETOWN, getpid()));
    while (sigtimedwait(&set, NULL, &(struct timespec){0, 0}) != -1) {}
    TRY(send(server, "x", 1, 0));
    TRY(sigwaitinfo(&set, NULL) == SIGIO);
}
