// Images that a request names by an address: fetched from hosts that the server's options allow
// (--image-urls), and put into the messages as data: URLs.
//
// One parser, the fetching library's own, reads the address for the check and for the fetch; other
// protocols than HTTP, redirections, proxies and names with a password are not followed.
#ifndef QN_SERVER_FETCH_H
#define QN_SERVER_FETCH_H

#include "core/json.h"
#include "server/problem.h"

// Replaces the addresses in normalised messages (messages.h), which are changed in place. An
// address that is not allowed or does not answer with an image is a problem with status 400.
QN_MUST_CHECK qn_status qn_fetch_images(qn_exchange *ex, const json_t *messages,
                                        qn_problem *problem);

#endif
