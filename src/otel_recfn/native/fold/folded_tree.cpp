#include "fold/folded_tree.hpp"

namespace recfn::folding {

void Trees::fold(const Range& one, int64_t self_ns, FoldedTree& into_it, FoldedTree& holder) {
  if ((one.flags & kLinkable) != 0) {
    Linkable* linkable = linkables_.take();
    linkable->next = nullptr, linkable->event_id = one.event_id;
    link(holder, linkable, linkable);
  }
  Path* place = place_for(one, into_it, holder);
  paths_.add(*place, one, self_ns);
  merge_below(*place, into_it, holder);
}

void Trees::merge(FoldedTree& holder, FoldedTree& other) {
  if (other.root == nullptr) return;
  if (holder.root == nullptr) holder.root = paths_.make(kOther);
  merge_below(*holder.root, other, holder);
}

void Trees::give_back(FoldedTree& tree) {
  paths_.give_back_tree(tree.root);
  for (Linkable *each = tree.first_linkable, *next; each != nullptr; each = next) {
    next = each->next;
    linkables_.give_back(each);
  }
  tree = FoldedTree{tree.most};
}

// Where it is new, the root of what was folded into the range becomes its path, with all that hangs below.
Path* Trees::place_for(const Range& one, FoldedTree& into_it, FoldedTree& holder) {
  if (holder.root == nullptr) holder.root = paths_.make(kOther);
  if (Path* found = paths_.find(*holder.root, one.name)) return found;
  if (holder.size >= holder.most) return other(holder);
  ++holder.size;
  Path* place = nullptr;
  if (into_it.root != nullptr && holder.size + into_it.size <= holder.most) {
    place = into_it.root, place->name = one.name;
    holder.size += into_it.size, into_it.root = nullptr;
  } else {
    place = paths_.make(one.name);
  }
  paths_.append(*holder.root, *place);
  return place;
}

Path* Trees::other(FoldedTree& holder) {
  Path* found = paths_.find(*holder.root, kOther);
  if (found != nullptr) return found;
  ++holder.size;
  found = paths_.make(kOther);
  paths_.append(*holder.root, *found);
  return found;
}

void Trees::merge_below(Path& place, FoldedTree& other, FoldedTree& holder) {
  if (other.root != nullptr) {
    const bool fits = holder.size + other.size <= holder.most;
    if (fits) holder.size += other.size;
    Path* list = paths_.detach_below(*other.root);
    paths_.give_back(other.root);
    merge_list(place, list, holder, fits);
  }
  if (other.first_linkable != nullptr) link(holder, other.first_linkable, other.last_linkable);
  other = FoldedTree{other.most};
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

void Trees::link(FoldedTree& holder, Linkable* first, Linkable* last) {
  (holder.last_linkable == nullptr ? holder.first_linkable : holder.last_linkable->next) = first;
  holder.last_linkable = last;
}

}  // namespace recfn::folding
