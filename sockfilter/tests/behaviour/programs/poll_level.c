/* poll reports an event again as long as the condition holds. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    struct pollfd p = {.fd = e.server, .events = POLLIN | POLLOUT};
    char b[4];
    TRY(poll(&p, 1, 0));
    say("%x", p.revents);
    send(e.client, "ab", 2, 0);
    arrived(e.server, 2);
    for (int i = 0; i < 2; i++) {
        TRY(poll(&p, 1, -1));
        say("%x", p.revents);
        read(e.server, b, 1);
    }
    p.events = POLLIN;
    TRY(poll(&p, 1, 0));
    p.events = POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM | POLLPRI | POLLRDBAND | POLLWRBAND;
    TRY(poll(&p, 1, 0));
    say("%x", p.revents);
    p.events = 0;
    TRY(poll(&p, 1, 0));
}
