#include "stage/folded_tree.hpp"

namespace recfn::stage {

void Trees::merge(FoldedTree& holder, Path* above, FoldedTree& other) {
  if (other.root != nullptr) {
    const bool fits = holder.size + other.size <= holder.most;
    if (fits) holder.size += other.size;
    Path& place = above_or_root(holder, above);
    Path* list = detach_below(*other.root);
    give_back(other.root);
    merge_list(place, list, holder, fits);
  }
  if (other.first_linkable != nullptr) link(holder, other.first_linkable, other.last_linkable);
  other.forget();
}

void Trees::give_back(FoldedTree& tree) {
  give_back_all(tree.root);
  for (Linkable *each = tree.first_linkable, *next; each != nullptr; each = next) {
    next = each->next;
    linkables_.give_back(each);
  }
  tree.forget();
}

Path* Trees::make_below(FoldedTree& holder, Path& around, uint32_t name) {
  ++holder.size;
  Path* place = make(name);
  append(around, *place);
  return place;
}

Path* Trees::other(FoldedTree& holder) {
  Path* found = find(*holder.root, kOther);
  return found != nullptr ? found : make_below(holder, *holder.root, kOther);
}

// `fits`: the holder's size counts all of them already, and what is new goes there with all that hangs below it.
void Trees::merge_list(Path& place, Path* list, FoldedTree& holder, bool fits) {
  for (Path *path = list, *next; path != nullptr; path = next) {
    next = path->next;
    Path* mine = find(place, path->name);
    if (mine == nullptr && fits) {
      append(place, *path);
      continue;
    }
    Path* below = detach_below(*path);
    if (mine == nullptr && holder.size < holder.most) {
      ++holder.size;
      mine = path;
      append(place, *path);
    } else {
      if (mine == nullptr) {
        mine = other(holder);
        if (&place != holder.root) path->total_ns = 0;  // what it lies in has its time
      }
      add(*mine, path);
      if (fits) --holder.size;
    }
    merge_list(*mine, below, holder, fits);
  }
}

void Trees::link(FoldedTree& holder, uint64_t event_id) {
  Linkable* linkable = linkables_.take();
  linkable->next = nullptr, linkable->event_id = event_id;
  link(holder, linkable, linkable);
}

void Trees::link(FoldedTree& holder, Linkable* first, Linkable* last) {
  (holder.last_linkable == nullptr ? holder.first_linkable : holder.last_linkable->next) = first;
  holder.last_linkable = last;
}

Path* Trees::make(uint32_t name) {
  Path* path = nodes_.take();
  path->next = path->first_below = path->last_below = nullptr;
  path->name = name, path->below = 0;
  path->count = path->total_ns = path->self_ns = path->longest_ns = 0;
  path->shortest_ns = path->first_ns = INT64_MAX, path->first_id = UINT64_MAX;
  path->histogram.clear(0);
  return path;
}

// Also gives the other one back.
void Trees::add(Path& path, Path* other) {
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

void Trees::append(Path& above, Path& path) {
  path.next = nullptr;
  (above.last_below == nullptr ? above.first_below : above.last_below->next) = &path;
  above.last_below = &path;
  if (++above.below <= kMany) return;
  for (Path* each = above.below == kMany + 1 ? above.first_below : &path; each != nullptr; each = each->next) {
    many_.insert({&above, each});
  }
}

// What hangs below it, as a list, hangs below it no more.
Path* Trees::detach_below(Path& above) {
  Path* first = above.first_below;
  if (above.below > kMany) {
    for (const Path* each = first; each != nullptr; each = each->next) many_.erase(edge(above, each->name));
  }
  above.first_below = above.last_below = nullptr, above.below = 0;
  return first;
}

void Trees::give_back(Path* path) {
  path->histogram.give_back_windows(windows_);
  nodes_.give_back(path);
}

// With all that hangs below it.
void Trees::give_back_all(Path* root) {
  while (root != nullptr) {
    Path *path = root, *last = path->last_below, *below = detach_below(*path);
    root = path->next;
    if (below != nullptr) last->next = root, root = below;
    give_back(path);
  }
}

}  // namespace recfn::stage
