/* TCP_MAXSEG and TCP_CONGESTION. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int mss = 0;
    socklen_t len = sizeof mss;
    TRY(getsockopt(e.client, IPPROTO_TCP, TCP_MAXSEG, &mss, &len));
    say("%d", mss >= 536);
    char name[16] = {0};
    len = sizeof name;
    TRY(getsockopt(e.client, IPPROTO_TCP, TCP_CONGESTION, name, &len));
    say("%u, named %d", len, name[0] != 0);
    TRY(setsockopt(e.client, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    memset(name, 0, 16);
    TRY(getsockopt(e.client, IPPROTO_TCP, TCP_CONGESTION, name, &len));
    say("%s", name);
    TRY(setsockopt(e.client, IPPROTO_TCP, TCP_CONGESTION, "nonsense", 8));
}
