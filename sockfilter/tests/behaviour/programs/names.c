/* getsockname and getpeername: complete, truncated, refused. */
#include "behaviour.h"

int main(void) {
    int s = listener();
    struct ends e = ends_at(s);
    struct sockaddr_in a, b;
    socklen_t len = sizeof a;
    TRY(getpeername(e.client, (struct sockaddr *)&a, &len));
    b = where(s);
    say("%u, same %d", len, memcmp(&a, &b, 8) == 0);
    TRY(getpeername(e.server, (struct sockaddr *)&a, &len));
    b = where(e.client);
    say("same %d, loopback %d", memcmp(&a, &b, 8) == 0, b.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    b = where(e.server);
    a = where(s);
    say("same %d", memcmp(&a, &b, 8) == 0);
    len = 3;
    TRY(getsockname(e.client, (struct sockaddr *)&a, &len));
    say("%u", len);
    len = 0;
    TRY(getsockname(e.client, (struct sockaddr *)&a, &len));
    say("%u", len);
    len = -1;
    TRY(getsockname(e.client, (struct sockaddr *)&a, &len));
    TRY(getpeername(e.client, (struct sockaddr *)&a, &len));
    len = sizeof a;
    TRY(getpeername(s, (struct sockaddr *)&a, &len));
    TRY(getsockname(e.client, NULL, &len));
    TRY(getsockname(e.client, (struct sockaddr *)&a, NULL));
    TRY(getpeername(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&a, &len));
    shutdown(e.client, SHUT_RDWR);
    TRY(getpeername(e.server, (struct sockaddr *)&a, &len));
}
