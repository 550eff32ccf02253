/* The values of SO_TYPE, SO_DOMAIN, SO_PROTOCOL, SO_ACCEPTCONN and SO_ERROR. */
#include "behaviour.h"

static void show(int fd, const char *who) {
    int names[] = {SO_TYPE, SO_DOMAIN, SO_PROTOCOL, SO_ACCEPTCONN, SO_ERROR}, v[5];
    for (int i = 0; i < 5; i++) {
        socklen_t len = sizeof(int);
        MUST(getsockopt(fd, SOL_SOCKET, names[i], &v[i], &len));
    }
    say("%s: type %d, domain %d, protocol %d, accepts %d, error %d", who, v[0], v[1], v[2], v[3], v[4]);
}
int main(void) {
    int s = listener();
    struct ends e = ends_at(s);
    show(s, "listener");
    show(e.client, "client");
    show(e.server, "server");
    int n = 0x55555555;
    socklen_t len = 1;
    TRY(getsockopt(s, SOL_SOCKET, SO_ACCEPTCONN, &n, &len));
    say("%u %x", len, n);
    len = 100;
    char big[100];
    TRY(getsockopt(s, SOL_SOCKET, SO_ACCEPTCONN, big, &len));
    say("%u", len);
    TRY(getsockopt(s, SOL_SOCKET, 9999, &n, &len));
    TRY(getsockopt(e.client, 9999, 1, &n, &len));
    len = -1;
    TRY(getsockopt(e.client, SOL_SOCKET, SO_ERROR, &n, &len));
    len = 4;
    TRY(getsockopt(e.client, SOL_SOCKET, SO_ERROR, NULL, &len));
    TRY(getsockopt(e.client, SOL_SOCKET, SO_ERROR, &n, NULL));
}
