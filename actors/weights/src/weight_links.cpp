#include "weir/weights/weight_links.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "service.hpp"
#include "weir/weights/manifest_header.hpp"

namespace weir {

namespace {
enum moved_kind : std::uint8_t { released_kind, adopted_kind, arrived_kind };
}

// ---- the source's side ------------------------------------------------------------------------------------

struct broadcast_sender::state {
  std::string address;
  std::function<result<std::shared_ptr<region>>()> allocate;
  std::mutex mutex;
  std::function<void(weights_moved)> tell;  ///< the actor, while there is one
  std::unique_ptr<broadcast::service<broadcast_source>> service;

  void moved(const weights_moved& news) {
    std::lock_guard lock(mutex);
    if (tell) tell(news);
  }
};

broadcast_sender::broadcast_sender(std::unique_ptr<state> s) : state_(std::move(s)) {}
broadcast_sender::~broadcast_sender() = default;

result<std::shared_ptr<broadcast_sender>> broadcast_sender::make(const transport_maker& maker,
                                                                 broadcast_settings settings, handlers h) {
  auto made = std::make_unique<state>();
  auto* s = made.get();
  source_handlers told;
  told.on_released = [s](weight_version v, bool spoiled) { s->moved({released_kind, v, spoiled}); };
  told.on_adopted = [s](weight_version v) { s->moved({adopted_kind, v, false}); };
  told.on_delivered = std::move(h.on_delivered);
  told.on_notice = std::move(h.on_notice);
  auto source = broadcast_source::make(maker, std::move(settings), std::move(told));
  if (!source) return fail(source.error());
  s->address = (*source)->address();
  s->allocate = [at = source->get()] { return at->allocate(); };
  s->service = std::make_unique<broadcast::service<broadcast_source>>(std::move(*source));
  return std::shared_ptr<broadcast_sender>(new broadcast_sender(std::move(made)));
}

const std::string& broadcast_sender::address() const noexcept { return state_->address; }
result<std::shared_ptr<region>> broadcast_sender::allocate() { return state_->allocate(); }

weight_uplink::weight_uplink(caf::actor_config& config, std::shared_ptr<broadcast_sender> from,
                             std::shared_ptr<const weight_shelf> shelf)
    : node(config), sender_(std::move(from)), shelf_(std::move(shelf)) {
  std::lock_guard lock(sender_->state_->mutex);
  sender_->state_->tell = [self = caf::actor_cast<caf::weak_actor_ptr>(this)](const weights_moved& news) {
    if (auto alive = self.lock()) caf::anon_send(caf::actor_cast<weight_uplink_actor>(alive), news);
  };
}

weight_uplink_actor::behavior_type weight_uplink::make_behavior() {
  return behave(
      [] { return drained{}; },
      [this](const adopt_weights& news) -> promise<weights_adopted> {
        auto answer = make_response_promise<weights_adopted>();
        auto content = shelf_->find(news.version);
        if (!content || !content->memory) {
          answer.deliver(to_caf(content ? error{errc::unsupported, "its memory cannot be sent on"} : content.error()));
          return answer;
        }
        taking_ = news.version;
        answer_ = answer;
        adopted_ = false;
        unreleased_.push_back(news.version);
        sender_->state_->service->post([version = news.version, memory = content->memory](broadcast_source& source) {
          source.publish(version, memory);
        });
        return answer;
      },
      [this](const weights_moved& news) { moved(news); });
}

void weight_uplink::moved(const weights_moved& news) {
  if (news.what == adopted_kind) adopted_ = adopted_ || (taking_ && news.version >= *taking_);
  if (news.what == released_kind) {
    std::erase(unreleased_, news.version);
    if (news.spoiled) spoiled_.push_back(news.version);
  }
  answer_if_done();
}

/// The store may give older memory back as soon as it has the answer: so nobody elsewhere reads it any more.
void weight_uplink::answer_if_done() {
  if (!taking_ || !adopted_ || unreleased_.size() > 1) return;
  answer_.deliver(weights_adopted{*std::exchange(taking_, std::nullopt), std::exchange(spoiled_, {})});
  answer_ = {};
}

void weight_uplink::on_exit() {
  {
    std::lock_guard lock(sender_->state_->mutex);
    sender_->state_->tell = nullptr;
  }
  if (taking_) answer_.deliver(to_caf(error{errc::unavailable, "the weight uplink stopped"}));
  answer_ = {};
  sender_.reset();
  shelf_.reset();
  node::on_exit();
}

// ---- the receivers' side ----------------------------------------------------------------------------------

struct weight_downlink::state {
  transport_maker maker;
  receiver_settings settings;
  std::shared_ptr<weight_shelf> shelf;
  weight_downlink_observer observer;
  std::unique_ptr<broadcast::service<broadcast_receiver>> service;
};

weight_downlink::weight_downlink(caf::actor_config& config, transport_maker maker, receiver_settings settings,
                                 std::shared_ptr<weight_shelf> shelf, weight_downlink_observer observer)
    : node(config),
      state_(new state{std::move(maker), std::move(settings), std::move(shelf), std::move(observer), nullptr}) {}
weight_downlink::~weight_downlink() = default;

weight_downlink_actor::behavior_type weight_downlink::make_behavior() {
  receiver_handlers h;
  h.on_arrived = [s = state_.get(), self = caf::actor_cast<caf::weak_actor_ptr>(this)](const arrived_weights& w) {
    s->shelf->put(w.version, {w.bytes, w.owner, nullptr});
    if (s->observer.on_arrived) s->observer.on_arrived(w);
    if (auto alive = self.lock())
      caf::anon_send(caf::actor_cast<weight_downlink_actor>(alive), weights_moved{arrived_kind, w.version, false});
  };
  h.on_joined = [s = state_.get()](std::uint64_t bytes, const std::string& description) -> result<void> {
    if (description.empty()) return {};
    auto layout = read_header(description);
    if (!layout) return fail(layout.error());
    if (layout->bytes != bytes) return fail(errc::invalid_data, "its manifest is of another size than its versions");
    s->shelf->set_layout(std::make_shared<const manifest>(std::move(*layout)));
    return {};
  };
  h.on_notice = state_->observer.on_notice;
  auto receiver = broadcast_receiver::make(state_->maker, state_->settings, std::move(h));
  if (!receiver)
    this->quit(to_caf(receiver.error()));
  else
    state_->service = std::make_unique<broadcast::service<broadcast_receiver>>(std::move(*receiver));
  return behave([] { return drained{}; },
                [this](const weights_live& news) {
                  if (state_->service)
                    state_->service->post([v = news.version](broadcast_receiver& r) { r.adopted(v); });
                },
                [this](const weights_moved& news) {
                  request(*versions_, caf::infinite, publish_weights{news.version})
                      .then([this](const weights_released& free) { state_->shelf->remove(free.version); },
                            [this, v = news.version](const caf::error&) { state_->shelf->remove(v); });
                });
}

void weight_downlink::on_exit() {
  state_->service.reset();
  node::on_exit();
}

}  // namespace weir
