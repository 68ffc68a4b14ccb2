#include "fold/folded_tree.hpp"

namespace recfn::folding {

Path* Trees::make_below(FoldedTree& holder, Path& around, uint32_t name) {
  ++holder.size;
  Path* place = paths_.make(name);
  paths_.append(around, *place);
  return place;
}

void Trees::merge(FoldedTree& holder, Path* above, FoldedTree& other) {
  if (other.root != nullptr) {
    const bool fits = holder.size + other.size <= holder.most;
    if (fits) holder.size += other.size;
    Path& place = above_or_root(holder, above);
    Path* list = paths_.detach_below(*other.root);
    paths_.give_back(other.root);
    merge_list(place, list, holder, fits);
  }
  if (other.first_linkable != nullptr) link(holder, other.first_linkable, other.last_linkable);
  other.forget();
}

void Trees::give_back(FoldedTree& tree) {
  paths_.give_back_tree(tree.root);
  for (Linkable *each = tree.first_linkable, *next; each != nullptr; each = next) {
    next = each->next;
    linkables_.give_back(each);
  }
  tree.forget();
}

Path* Trees::other(FoldedTree& holder) {
  Path* found = paths_.find(*holder.root, kOther);
  if (found != nullptr) return found;
  ++holder.size;
  found = paths_.make(kOther);
  paths_.append(*holder.root, *found);
  return found;
}

// `fits`: the holder's size counts all of them already, and what is new goes there with all that hangs below it.
void Trees::merge_list(Path& place, Path* list, FoldedTree& holder, bool fits) {
  for (Path *path = list, *next; path != nullptr; path = next) {
    next = path->next;
    Path* mine = paths_.find(place, path->name);
    if (mine == nullptr && fits) {
      paths_.append(place, *path);
      continue;
    }
    Path* below = paths_.detach_below(*path);
    if (mine == nullptr && holder.size < holder.most) {
      ++holder.size;
      mine = path;
      paths_.append(place, *path);
    } else {
      if (mine == nullptr) {
        mine = other(holder);
        if (&place != holder.root) path->total_ns = 0;  // what it lies in has its time
      }
      paths_.add(*mine, path);
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

}  // namespace recfn::folding
