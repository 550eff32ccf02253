/* Writing to a peer that has closed: accepted, then reset, then EPIPE. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[4];
    close(e.client);
    TRY(read(e.server, b, 4));
    TRY(send(e.server, "x", 1, MSG_NOSIGNAL));
    struct pollfd p = {e.server, POLLIN | POLLOUT};
    do { MUST(poll(&p, 1, 5000)); } while (!(p.revents & POLLHUP));
    say("%x", p.revents);
    TRY(send(e.server, "x", 1, MSG_NOSIGNAL));
    TRY(read(e.server, b, 4));
}
