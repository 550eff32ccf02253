/* The events of poll after one or both directions have ended. */
#include "behaviour.h"

static void look(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN | POLLOUT | POLLRDHUP};
    poll(&p, 1, 5000);
    say("%x", p.revents);
}
int main(void) {
    struct ends e = ends();
    shutdown(e.client, SHUT_WR);
    ended(e.server);
    look(e.server);
    look(e.client);
    shutdown(e.server, SHUT_WR);
    look(e.server);
    ended(e.client);
    look(e.client);
    e = ends();
    shutdown(e.client, SHUT_RD);
    look(e.client);
    shutdown(e.client, SHUT_RDWR);
    look(e.client);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    look(s);
    look(bound());
}
