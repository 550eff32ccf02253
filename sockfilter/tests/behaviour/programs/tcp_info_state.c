/* TCP_INFO reports the state of the connection. */
#include "behaviour.h"

static void settle(int fd, int expected) {
    for (int i = 0; i < 2000 && state(fd) != expected; i++) usleep(1000);
    say("%d", state(fd));
}
int main(void) {
    int b = bound();
    settle(b, 7);
    MUST(listen(b, 4));
    settle(b, 10);
    struct ends e = ends_at(b);
    settle(e.client, 1);
    settle(e.server, 1);
    shutdown(e.client, SHUT_WR);
    settle(e.client, 5);
    settle(e.server, 8);
    shutdown(e.server, SHUT_WR);
    settle(e.server, 7);
    e = ends_at(b);
    struct linger l = {1, 0};
    setsockopt(e.client, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    close(e.client);
    settle(e.server, 7);
    struct tcp_info info;
    socklen_t len = 4;
    TRY(getsockopt(b, IPPROTO_TCP, TCP_INFO, &info, &len));
    say("%u %d", len, info.tcpi_state);
}
