#include "fold/paths.hpp"

#include <algorithm>

namespace recfn::folding {

void Paths::add(Path& path, const Range& one, int64_t self_ns, int64_t total_ns) {
  const bool first = path.count == 0;
  if (first || one.start_ns < path.first_ns || (one.start_ns == path.first_ns && one.event_id < path.first_id)) {
    path.first_ns = one.start_ns, path.first_id = one.event_id;
  }
  path.shortest_ns = first ? one.duration_ns : std::min(path.shortest_ns, one.duration_ns);
  path.longest_ns = std::max(path.longest_ns, one.duration_ns);
  ++path.count, path.total_ns = sum(path.total_ns, total_ns), path.self_ns = sum(path.self_ns, self_ns);
  const unsigned digits = digits_of(one.duration_ns);
  if (first) path.histogram.clear(digits);
  path.histogram.add(digits, windows_);
}

void Paths::add(Path& path, Path* other) {
  const bool first = path.count == 0;
  if (first || other->first_ns < path.first_ns || (other->first_ns == path.first_ns && other->first_id < path.first_id)) {
    path.first_ns = other->first_ns, path.first_id = other->first_id;
  }
  path.shortest_ns = first ? other->shortest_ns : std::min(path.shortest_ns, other->shortest_ns);
  path.longest_ns = std::max(path.longest_ns, other->longest_ns);
  path.count += other->count;
  path.total_ns = sum(path.total_ns, other->total_ns), path.self_ns = sum(path.self_ns, other->self_ns);
  if (first) path.histogram.clear(other->histogram);
  path.histogram.add(other->histogram, windows_);
  give_back(other);
}

Path* Paths::make(uint32_t name) {
  Path* path = nodes_.take();
  path->next = path->first_below = path->last_below = nullptr;
  path->name = name, path->below = 0;
  path->count = path->total_ns = path->self_ns = path->shortest_ns = path->longest_ns = path->first_ns = 0;
  path->first_id = 0;
  path->histogram.clear(0);
  return path;
}

Path* Paths::find(const Path& above, uint32_t name) {
  if (above.below > kMany) {
    const Edge* found = edge(above, name);
    return found == nullptr ? nullptr : found->path;
  }
  Path* path = above.first_below;
  while (path != nullptr && path->name != name) path = path->next;
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

void Paths::grow(size_t nodes) {
  const size_t chunks = nodes / Pool<Path>::kChunk + 1;
  many_.reserve(nodes_.all_items() + chunks * Pool<Path>::kChunk - many_.size());
  nodes_.reserve(nodes);
}

}  // namespace recfn::folding
