/* MSG_WAITALL waits for all bytes; the end of the stream and MSG_DONTWAIT cut it short. */
#include "behaviour.h"

static struct ends e;
static void *slowly(void *unused) {
    for (int i = 0; i < 5; i++) {
        send(e.client, "ab", 2, 0);
        struct timespec t = {0, 3000000};
        nanosleep(&t, NULL);
    }
    return NULL;
}
int main(void) {
    e = ends();
    char b[32] = {0};
    pthread_t t;
    pthread_create(&t, NULL, slowly, NULL);
    TRY(recv(e.server, b, 10, MSG_WAITALL));
    say("%s", b);
    pthread_join(t, NULL);
    send(e.client, "xyz", 3, 0);
    arrived(e.server, 3);
    TRY(recv(e.server, b, 10, MSG_WAITALL | MSG_DONTWAIT));
    char c[4] = {0}, d[4] = {0};
    struct iovec list[] = {{c, 3}, {d, 3}};
    struct msghdr m = {.msg_iov = list, .msg_iovlen = 2};
    pthread_create(&t, NULL, slowly, NULL);
    TRY(recvmsg(e.server, &m, MSG_WAITALL));
    say("%s %s", c, d);
    pthread_join(t, NULL);
    arrived(e.server, 4);
    TRY(recv(e.server, b, 10, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT));
    shutdown(e.client, SHUT_WR);
    TRY(recv(e.server, b, 10, MSG_WAITALL));
    TRY(recv(e.server, b, 10, MSG_WAITALL));
}
