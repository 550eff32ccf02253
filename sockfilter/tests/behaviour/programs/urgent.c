/* Urgent data is refused. */
// differs: send(e.client, "u", 1, MSG_OOB) = 1 | send(e.client, "u", 1, MSG_OOB): EOPNOTSUPP | the transport carries one stream and no second one beside it
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[4];
    TRY(recv(e.server, b, 1, MSG_OOB));
    TRY(send(e.client, "u", 1, MSG_OOB));
    TRY(send(e.client, "n", 1, 0));
}
