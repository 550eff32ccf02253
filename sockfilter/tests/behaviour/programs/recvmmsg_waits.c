/* Without MSG_WAITFORONE recvmmsg waits for every message. */
#include "behaviour.h"

static struct ends e;
static void *later(void *unused) {
    for (int i = 0; i < 3; i++) {
        await_thread_asleep();
        send(e.client, "abcd", 4, 0);
    }
    return NULL;
}
int main(void) {
    e = ends();
    char b[3][4];
    struct iovec v[3];
    struct mmsghdr m[3];
    memset(m, 0, sizeof m);
    for (int i = 0; i < 3; i++) {
        v[i] = (struct iovec){b[i], 4};
        m[i].msg_hdr.msg_iov = &v[i];
        m[i].msg_hdr.msg_iovlen = 1;
    }
    pthread_t t;
    this_thread();
    pthread_create(&t, NULL, later, NULL);
    TRY(recvmmsg(e.server, m, 3, 0, NULL));
    pthread_join(t, NULL);
    say("%u %u %u", m[0].msg_len, m[1].msg_len, m[2].msg_len);
}
