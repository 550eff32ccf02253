/* A non-blocking write takes what there is room for, then EAGAIN; room makes it writable again. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    nonblocking(e.client);
    long sent = stuff(e.client);
    say("%d", sent > 100000);
    while (write(e.client, "x", 1) == 1) sent++;
    say("%s", strerrorname_np(errno));
    struct pollfd p = {.fd = e.client, .events = POLLOUT};
    TRY(poll(&p, 1, 0));
    drain(e.server, sent);
    TRY(poll(&p, 1, 5000));
    say("%d", p.revents);
    TRY(write(e.client, "x", 1));
}
