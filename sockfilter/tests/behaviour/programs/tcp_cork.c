/* TCP_CORK gathers, and lets go when it is pulled. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int on = 1, off = 0;
    char b[16] = {0};
    TRY(setsockopt(e.client, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    socklen_t len = sizeof on;
    TRY(getsockopt(e.client, IPPROTO_TCP, TCP_CORK, &on, &len));
    say("%d", on);
    TRY(send(e.client, "ab", 2, 0));
    TRY(send(e.client, "cd", 2, 0));
    TRY(setsockopt(e.client, IPPROTO_TCP, TCP_CORK, &off, sizeof off));
    arrived(e.server, 4);
    TRY(recv(e.server, b, 16, 0));
    say("%s", b);
}
