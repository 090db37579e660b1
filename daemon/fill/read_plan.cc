#include "daemon/fill/read_plan.h"

#include <algorithm>
#include <string>

#include "daemon/memory/pages.h"

namespace wcache {
namespace {

std::uint64_t round_down(std::uint64_t value, std::uint64_t unit) {
  return value / unit * unit;
}
std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return round_down(value + unit - 1, unit);
}

/// A run of a piece within one chunk, not yet part of a read.
struct Run {
  std::uint32_t source = 0;
  std::uint64_t source_offset = 0;
  std::uint32_t image = 0;
  std::uint64_t image_offset = 0;
  std::uint64_t nbytes = 0;

  Run part(std::uint64_t begin, std::uint64_t end) const {
    return {source, source_offset + (begin - image_offset), image, begin, end - begin};
  }
};

Status check(const EntryPlan& plan) {
  for (const ImagePlan& image : plan.images) {
    std::uint64_t at = image.head.size();
    for (const Piece& piece : image.pieces) {
      const bool known = piece.source < plan.sources.size();
      const std::uint64_t size = known ? plan.sources[piece.source].identity.nbytes : 0;
      if (!known || piece.image_offset != at || piece.nbytes > size ||
          piece.source_offset > size - piece.nbytes)
        return fail(Reason::internal,
                    "the plan of " + image.name + " is wrong at byte " + std::to_string(piece.image_offset));
      at += piece.nbytes;
    }
    if (at != image.nbytes)
      return fail(Reason::internal, "the plan of " + image.name + " covers " + std::to_string(at) + " of " +
                                        std::to_string(image.nbytes) + " bytes");
  }
  return {};
}

class Planner {
 public:
  Planner(const EntryPlan& plan, std::span<const std::uint64_t> alignments)
      : plan_(plan), alignments_(alignments) {}

  ReadPlan run() {
    for (std::uint32_t i = 0; i < plan_.images.size(); ++i)
      for (const Piece& piece : plan_.images[i].pieces) add_piece(i, piece);
    return finish();
  }

  Result<ReadPlan> run_staged() {
    for (std::uint32_t i = 0; i < plan_.images.size(); ++i)
      if (auto s = add_blocks(i); !s) return fail(s.error());
    return finish();
  }

 private:
  ReadPlan finish() {
    add_loose();
    std::sort(out_.reads.begin(), out_.reads.end(), [](const PlannedRead& a, const PlannedRead& b) {
      return a.source != b.source ? a.source < b.source : a.offset < b.offset;
    });
    return std::move(out_);
  }

  void add_piece(std::uint32_t image, const Piece& piece) {
    const Run whole{piece.source, piece.source_offset, image, piece.image_offset, piece.nbytes};
    const std::uint64_t end = piece.image_offset + piece.nbytes;
    for (std::uint64_t at = piece.image_offset; at < end;) {
      const std::uint64_t next = std::min(end, round_down(at, kChunk) + kChunk);
      add_run(whole.part(at, next));
      at = next;
    }
  }

  /// Cuts the pieces of an image at ends of hash blocks.
  Status add_blocks(std::uint32_t index) {
    const ImagePlan& image = plan_.images[index];
    const auto wrong = [&](std::uint64_t at) {
      return fail(Reason::internal, "a segment of " + image.name + " does not end with its piece, at byte " +
                                        std::to_string(at));
    };
    auto segment = std::ranges::lower_bound(image.segments, image.head.size(), {}, &Segment::offset);
    for (const Piece& piece : image.pieces) {
      if (piece.nbytes == 0) continue;
      if (segment == image.segments.end() || segment->offset != piece.image_offset)
        return wrong(piece.image_offset);
      const Run whole{piece.source, piece.source_offset, index, piece.image_offset, piece.nbytes};
      const std::uint64_t end = piece.image_offset + piece.nbytes;
      std::uint64_t begin = piece.image_offset;
      for (; segment != image.segments.end() && segment->offset < end; ++segment) {
        if (segment->nbytes > end - segment->offset) return wrong(end);
        for (std::uint64_t done = 0; done < segment->nbytes; done += kHashBlock) {
          const std::uint64_t block = segment->offset + done;
          if (block + std::min(kHashBlock, segment->nbytes - done) - begin <= kChunk) continue;
          loose_.push_back(whole.part(begin, block));
          begin = block;
        }
      }
      loose_.push_back(whole.part(begin, end));
    }
    return {};
  }

  void add_run(const Run& run) {
    const std::uint64_t unit = alignments_[run.source];
    const std::uint64_t end = run.image_offset + run.nbytes;
    const std::uint64_t image_nbytes = plan_.images[run.image].nbytes;
    // The last page of an image is ours to its end, so the last read may be longer than what is left.
    const bool room = end == image_nbytes && round_up(end, unit) <= whole_pages(image_nbytes);
    const std::uint64_t first = round_up(run.image_offset, unit);
    const std::uint64_t last = room ? end : round_down(end, unit);
    // Images shorter than a chunk begin at a page, longer ones at a chunk's boundary.
    const bool aligned = unit <= page_nbytes() || image_nbytes >= kChunk;
    if (!aligned || run.image_offset % unit != run.source_offset % unit || first >= last) {
      loose_.push_back(run);
      return;
    }
    if (run.image_offset < first) loose_.push_back(run.part(run.image_offset, first));
    add_direct(run.part(first, last), unit);
    if (last < end) loose_.push_back(run.part(last, end));
  }

  void add_direct(const Run& run, std::uint64_t unit) {
    out_.reads.push_back({.source = run.source,
                          .direct = true,
                          .first_landing = static_cast<std::uint32_t>(out_.landings.size()),
                          .landings = 1,
                          .offset = run.source_offset,
                          .nbytes = round_up(run.nbytes, unit),
                          .needed = run.nbytes});
    out_.landings.push_back({run.image, run.image_offset, run.nbytes, 0});
  }

  /// Runs whose aligned ranges touch are read together.
  void add_loose() {
    std::sort(loose_.begin(), loose_.end(), [](const Run& a, const Run& b) {
      return a.source != b.source ? a.source < b.source : a.source_offset < b.source_offset;
    });
    bool open = false;
    for (const Run& run : loose_) {
      const std::uint64_t unit = alignments_[run.source];
      const std::uint64_t begin = round_down(run.source_offset, unit);
      const std::uint64_t end = round_up(run.source_offset + run.nbytes, unit);
      if (!open || !joins(out_.reads.back(), run.source, begin, end)) {
        out_.reads.push_back({.source = run.source,
                              .direct = false,
                              .first_landing = static_cast<std::uint32_t>(out_.landings.size()),
                              .landings = 0,
                              .offset = begin,
                              .nbytes = 0,
                              .needed = 0});
        open = true;
      }
      PlannedRead& read = out_.reads.back();
      read.nbytes = std::max(read.nbytes, end - read.offset);
      read.needed = std::max(read.needed, run.source_offset + run.nbytes - read.offset);
      read.landings += 1;
      out_.landings.push_back({run.image, run.image_offset, run.nbytes, run.source_offset - read.offset});
    }
  }

  static bool joins(const PlannedRead& read, std::uint32_t source, std::uint64_t begin, std::uint64_t end) {
    return read.source == source && begin <= read.offset + read.nbytes && end - read.offset <= kBounceNbytes;
  }

  const EntryPlan& plan_;
  std::span<const std::uint64_t> alignments_;
  std::vector<Run> loose_;
  ReadPlan out_;
};

}  // namespace

std::uint64_t ReadPlan::read_nbytes() const {
  std::uint64_t sum = 0;
  for (const PlannedRead& read : reads) sum += read.nbytes;
  return sum;
}

Result<ReadPlan> plan_reads(const EntryPlan& plan, std::span<const std::uint64_t> alignments) {
  if (auto s = check(plan); !s) return fail(s.error());
  return Planner(plan, alignments).run();
}

Result<ReadPlan> plan_staged_reads(const EntryPlan& plan, std::span<const std::uint64_t> alignments) {
  if (auto s = check(plan); !s) return fail(s.error());
  return Planner(plan, alignments).run_staged();
}

}  // namespace wcache
