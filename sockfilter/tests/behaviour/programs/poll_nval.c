/* Descriptors that are closed, negative or there twice. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends(), f = ends();
    int gone = f.client;
    close(f.client);
    send(e.client, "x", 1, 0);
    arrived(e.server, 1);
    struct pollfd set[] = {{e.server, POLLIN}, {gone, POLLIN}, {-1, POLLIN, 7}, {e.server, POLLOUT}, {e.server, 0}};
    TRY(poll(set, 5, -1));
    for (int i = 0; i < 5; i++) say("%x", set[i].revents);
    TRY(poll(NULL, 0, 0));
    TRY(poll(set, (nfds_t)-1, 0));
}
