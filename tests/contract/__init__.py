"""The contract of the KV plane, in two layers. Who inherits a layer runs all of its clauses.

`transport_contract.TransportContract`, what every transport must do:
  the same bytes, of blocks, layer ranges and head ranges; reads in any order; nothing else touched; no read taken back;
  a stranger, a forgotten peer, blocks and bytes that do not exist, and a closed transport refused by name
    local        tests/unit/kv_transfer/test_local.py
    two-sided    tests/unit/kv_transfer/test_two_sided.py        over pipes within one process
    gloo         tests/unit/kv_transfer/test_gloo.py
    nixl         tests/integration/test_nixl_contract.py         shared memory and TCP
    nccl         tests/gpu/test_nccl.py
    nixl, VRAM   tests/gpu/test_vram_nixl.py

`route_contract.RouteContract`, what every way of KV blocks must do, from the open to the verdict:

  clause                                             worker → worker           node → worker   worker → node
                                                     local two-sided gloo nixl local    nixl   local    nixl
  same bytes                                           x       x      x    x     x       x       x       x
  cancel before, during, after                         x       x      x    x     x       x       x       x
  late bytes of a cancelled one                        x       x      x    x     x       x       x       x
  peer gone, at each moment                            x       x      x    x     x       x       x       x
  peer stopped, at each moment                         x       x      x    x     x       x       x       x
  out of order, and after the end (stale session)      x       x      x    x     x       x       x       x
  duplicate session, duplicate verdict                 x       x      x    x     x       x       x       x
  blocks reused meanwhile (stale)                      x       x      x    x     x       x       x       x
  incompatible peer, for each field                    x       x      x    -     x       -       x       -

    local, two-sided, gloo    tests/unit/kv_transfer/test_routes.py
    nixl                      tests/integration/test_nixl_routes.py
    -                         decided at the handshake, before a transport is touched: `CompatibilityContract`

Pools are read by NIXL alone, since a node sends nothing by itself. What only processes can show (a peer that is stopped
or killed, and what its memory then does) is in tests/integration: test_nixl_processes.py, test_peer_handoff.py and, for
pool nodes, test_pool_node.py. How a stream of announcements may break is in tests/unit/kv_transfer/test_handoff.py.
"""
