#include "fold/paths.hpp"

#include <algorithm>

namespace recfn::folding {

void Paths::add(Path& path, Path* other) {
  if (other->first_ns < path.first_ns || (other->first_ns == path.first_ns && other->first_id < path.first_id)) {
    path.first_ns = other->first_ns, path.first_id = other->first_id;
  }
  path.shortest_ns = std::min(path.shortest_ns, other->shortest_ns);
  path.longest_ns = std::max(path.longest_ns, other->longest_ns);
  if (path.count == 0) path.histogram.clear(other->histogram);
  path.count += other->count;
  path.total_ns = wrapped_sum(path.total_ns, other->total_ns), path.self_ns = wrapped_sum(path.self_ns, other->self_ns);
  path.histogram.add(other->histogram, windows_);
  give_back(other);
}

Path* Paths::make(uint32_t name) {
  Path* path = nodes_.take();
  path->next = path->first_below = path->last_below = nullptr;
  path->name = name, path->below = 0;
  path->count = path->total_ns = path->self_ns = path->longest_ns = 0;
  path->shortest_ns = path->first_ns = INT64_MAX, path->first_id = UINT64_MAX;
  path->histogram.clear(0);
  return path;
}

void Paths::append(Path& above, Path& path) {
  path.next = nullptr;
  (above.last_below == nullptr ? above.first_below : above.last_below->next) = &path;
  above.last_below = &path;
  if (++above.below <= kMany) return;
  for (Path* each = above.below == kMany + 1 ? above.first_below : &path; each != nullptr; each = each->next) {
    many_.insert({&above, each});
  }
}

Path* Paths::detach_below(Path& above) {
  Path* first = above.first_below;
  if (above.below > kMany) {
    for (const Path* each = first; each != nullptr; each = each->next) many_.erase(edge(above, each->name));
  }
  above.first_below = above.last_below = nullptr, above.below = 0;
  return first;
}

void Paths::give_back_tree(Path* root) {
  while (root != nullptr) {
    Path *path = root, *last = path->last_below, *below = detach_below(*path);
    root = path->next;
    if (below != nullptr) last->next = root, root = below;
    give_back(path);
  }
}

}  // namespace recfn::folding
