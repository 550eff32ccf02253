/* One thread sets options of a connection while another forks: they stay as they were set. */
#include "beside_fork.h"

static void *acts(void *unused) {
    for (int n = 0; !over; n++) {
        int value = n % 2, found = -1;
        socklen_t len = sizeof found;
        strange += setsockopt(e.client, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value) != 0;
        strange += getsockopt(e.client, IPPROTO_TCP, TCP_NODELAY, &found, &len) || found != value;
        struct timeval set = {3 + n % 5, 0}, got = {0};
        len = sizeof got;
        strange += setsockopt(e.client, SOL_SOCKET, SO_RCVTIMEO, &set, sizeof set) != 0;
        strange += getsockopt(e.client, SOL_SOCKET, SO_RCVTIMEO, &got, &len) || got.tv_sec != set.tv_sec;
        len = sizeof found;
        strange += getsockopt(e.client, SOL_SOCKET, SO_PROTOCOL, &found, &len) || found != IPPROTO_TCP;
        cycles++;
    }
    return NULL;
}

int main(void) { beside_forks(acts, 200); }
