#include "weir/rollout/rollout_engine.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "weir/policy/scalar_type.hpp"
#include "weir/policy/threads.hpp"
#include "weir/policy/torch.hpp"
#include "weir/runtime/random.hpp"

namespace weir {

/// A model, and where its parameters lie.
struct rollout_engine::replica {
  std::optional<causal_lm> model;
  at::Tensor own;                    ///< fp32: where the shelf's are of another kind or place
  std::shared_ptr<const void> kept;  ///< else the shelf's stay in place
};

/// Lays versions out beside the engine's thread, one at a time.
struct rollout_engine::helper {
  boost::asio::thread_pool thread{1};
  at::Tensor staging;  ///< on the host, where the model is elsewhere
};

rollout_engine::rollout_engine(caf::actor_config& config, causal_lm_config model, rollout_engine_settings settings,
                               std::shared_ptr<const weight_shelf> weights,
                               std::function<void(const rollout_activity&)> observer,
                               std::shared_ptr<const causal_lm> base)
    : node(config),
      config_(std::move(model)),
      settings_(std::move(settings)),
      weights_(std::move(weights)),
      observer_(std::move(observer)),
      now_(std::make_unique<replica>()),
      next_(std::make_unique<replica>()),
      base_(std::move(base)) {
  if (settings_.slots < 1 || settings_.prefill_tokens < 1)
    throw std::invalid_argument("an engine has at least one slot and prefills at least one token");
  if (settings_.max_context < 2 || settings_.max_context > config_.max_positions)
    throw std::invalid_argument("max_context is from 2 to the model's " + std::to_string(config_.max_positions) +
                                ", found " + std::to_string(settings_.max_context));
}

rollout_engine::~rollout_engine() {
  if (helper_) helper_->thread.join();
}

rollout_engine_actor::behavior_type rollout_engine::make_behavior() {
  // From here on it is the engine's own thread.
  set_intra_op_threads(settings_.threads);
  cache_.emplace(config_, settings_.slots, settings_.max_context, settings_.device);
  for (auto slot = settings_.slots; slot > 0; --slot) free_slots_.push_back(slot - 1);
  return behave(
      [this]() -> promise<drained> {
        auto answer = make_response_promise<drained>();
        // Requests are still taken: an episode that is to finish may need another turn.
        if (idle())
          answer.deliver(drained{});
        else
          drains_.push_back(answer);
        return answer;
      },
      [this](const generate_request& request) { return accept(request); },
      [this](const adopt_weights& news) { return adopt(news); }, [this](const weights_prepared&) { take_prepared(); },
      [this](const tick&) {
        scheduled_ = false;
        step();
      });
}

void rollout_engine::on_exit() {
  const auto gone = to_caf(error{errc::unavailable, "the rollout engine stopped"});
  for (auto& s : active_) s.answer.deliver(gone);
  for (auto& s : waiting_) s.answer.deliver(gone);
  active_.clear();
  waiting_.clear();
  drains_.clear();
  if (helper_) helper_->thread.join();
  for (auto& a : std::exchange(adoptions_, {})) a.answer.deliver(gone);
  *now_ = {};
  *next_ = {};
  node::on_exit();
}

promise<generation> rollout_engine::accept(const generate_request& request) {
  auto answer = make_response_promise<generation>();
  auto refuse = [&answer](errc code, const std::string& why) {
    answer.deliver(to_caf(error{code, why}));
    return answer;
  };
  const auto length = static_cast<std::int64_t>(request.context.size());
  if (length == 0) return refuse(errc::invalid_argument, "a request has at least one token of context");
  if (length >= settings_.max_context)
    return refuse(errc::invalid_argument, "a context of " + std::to_string(length) +
                                              " tokens leaves no room for one more in the engine's " +
                                              std::to_string(settings_.max_context) + " (max_context)");
  for (auto t : request.context)
    if (t < 0 || t >= config_.vocab_size)
      return refuse(errc::invalid_data, "token " + std::to_string(t) + " is outside the model's vocabulary of " +
                                            std::to_string(config_.vocab_size));
  if (auto valid = check_sampling(request.sampling, config_.vocab_size); !valid)
    return refuse(valid.error().code, valid.error().message);
  if (waiting_.size() >= settings_.most_waiting)
    return refuse(errc::unavailable,
                  std::to_string(waiting_.size()) + " requests wait already, which is the engine's bound");
  waiting_.push_back({request, {}, answer, 0, -1, 0});
  schedule();
  return answer;
}

promise<weights_adopted> rollout_engine::adopt(const adopt_weights& news) {
  adoptions_.push_back({news.version, make_response_promise<weights_adopted>()});
  auto answer = adoptions_.back().answer;
  if (adoptions_.size() == 1) prepare_next();
  return answer;
}

result<weight_content> rollout_engine::readable(weight_version version) {
  const auto bad = [&](const error& why) {
    return fail(why.code, "weight version " + std::to_string(version) + ": " + why.message);
  };
  auto view = weights_->find(version);
  if (!view) return view;
  if (auto fits = understand(weights_->layout()); !fits) return bad(fits.error());
  if (view->bytes.size() != plan_->published_bytes())
    return bad({errc::invalid_data, "it has " + std::to_string(view->bytes.size()) + " bytes, its layout has " +
                                        std::to_string(plan_->published_bytes())});
  return view;
}

/// Has the first of the versions that are to be taken laid out, while decoding goes on with the one before.
void rollout_engine::prepare_next() {
  for (; !adoptions_.empty(); adoptions_.pop_front()) {
    auto view = readable(adoptions_.front().version);
    if (!view) {
      adoptions_.front().answer.deliver(to_caf(view.error()));
      continue;
    }
    if (!helper_) {
      helper_ = std::make_unique<helper>();
      boost::asio::post(helper_->thread, [this] { set_intra_op_threads(settings_.threads); });
    }
    boost::asio::post(helper_->thread, [this, view = *view, self = caf::actor_cast<rollout_engine_actor>(this)] {
      try {
        lay_out(view);
        failure_.reset();
      } catch (const std::exception& e) {  // libtorch's: no memory, a device's fault
        failure_ = error{errc::internal, e.what()};
      }
      caf::anon_send(self, weights_prepared{});
    });
    return;
  }
}

void rollout_engine::take_prepared() {
  auto [version, answer] = std::move(adoptions_.front());
  adoptions_.pop_front();
  if (failure_) {
    answer.deliver(
        to_caf(error{failure_->code, "weight version " + std::to_string(version) + ": " + failure_->message}));
  } else {
    std::swap(now_, next_);
    next_->kept.reset();
    activity_.version = version;
    answer.deliver(weights_adopted{version});
    schedule();
  }
  prepare_next();
}

/// Works out, once for a layout, how versions become what the engine computes in.
result<void> rollout_engine::understand(std::shared_ptr<const manifest> layout) {
  if (plan_ && layout == understood_) return {};
  const auto own = causal_lm::layout(config_);
  auto plan = layout_plan::make(layout ? *layout : own, own, base_ ? layout_fit::partial : layout_fit::exact);
  if (!plan) return fail(plan.error());
  plan_ = std::move(*plan);
  understood_ = std::move(layout);
  return {};
}

/// Makes `next_` the version's model. Its parameters are read in place where they are fp32 and lie as the model's do,
/// else copied.
void rollout_engine::lay_out(const weight_content& version) {
  const auto as_they_are = [&](dtype type) {
    // Read only from here on, whatever the pointer's type says.
    return at::from_blob(const_cast<std::byte*>(version.bytes.data()),
                         {static_cast<std::int64_t>(version.bytes.size() / size_of(type))}, scalar_type(type));
  };
  auto& into = *next_;
  const bool on_host = settings_.device == "cpu", in_place = plan_->in_place() && on_host;
  const auto count = static_cast<std::int64_t>(plan_->target().bytes / sizeof(float));
  if (!in_place && !into.own.defined()) {
    into.own = at::empty({count}, at::TensorOptions(at::kFloat).device(at::Device(settings_.device)));
    if (base_) into.own.copy_(base_->flat().detach());
  }
  if (const auto type = plan_->as_a_whole(); type && !in_place) {
    into.own.copy_(as_they_are(*type));
  } else if (!in_place) {
    auto& host = on_host ? into.own : helper_->staging;
    if (!host.defined()) host = base_ ? base_->flat().detach().to(at::kCPU).clone() : at::empty({count}, at::kFloat);
    plan_->apply(version.bytes, {static_cast<std::byte*>(host.data_ptr()), plan_->target().bytes});
    if (!on_host) into.own.copy_(host);
  }
  const auto flat = in_place ? as_they_are(dtype::f32) : into.own;
  if (into.model)
    into.model->rebind(flat);
  else
    into.model.emplace(causal_lm::bind(config_, flat));
  into.model->prepare();
  into.kept = in_place ? version.owner : nullptr;
}

/// One more step is due if there is work and weights. Sent, not called: what came meanwhile is answered first.
void rollout_engine::schedule() {
  if (scheduled_ || !now_->model || idle()) return;
  scheduled_ = true;
  send(this, tick{});
}

void rollout_engine::step() {
  const auto begin = std::chrono::steady_clock::now();
  admit();
  if (active_.empty()) return;
  choose_chunks();
  const auto logits = now_->model->extend(*cache_, chunks_).to(at::kCPU).contiguous();
  draw(logits.data_ptr<float>(), logits.size(1));
  ++activity_.steps;
  activity_.busy_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  observe();
  if (idle())
    for (auto& waiting : std::exchange(drains_, {})) waiting.deliver(drained{});
  schedule();
}

void rollout_engine::admit() {
  std::optional<std::size_t> leader;
  while (!waiting_.empty() && !free_slots_.empty()) {
    auto& s = waiting_.front();
    s.slot = free_slots_.back();
    free_slots_.pop_back();
    if (leader && active_[*leader].request.context == s.request.context)
      s.leader = active_[*leader].slot;
    else
      leader = active_.size();
    active_.push_back(std::move(s));
    waiting_.pop_front();
  }
}

/// One token of each sequence that decodes, and of the others as much of their prompts as the step may take.
void rollout_engine::choose_chunks() {
  chunks_.clear();
  chunk_owner_.clear();
  auto room = settings_.prefill_tokens;
  for (std::size_t i = 0; i < active_.size(); ++i) {
    auto& s = active_[i];
    if (s.leader >= 0) continue;
    const auto prompt = static_cast<std::int64_t>(s.request.context.size());
    std::span<const token> tokens;
    if (s.cached < prompt) {
      const auto count = std::min(prompt - s.cached, room);
      if (count == 0) continue;
      room -= count;
      tokens =
          std::span(s.request.context).subspan(static_cast<std::size_t>(s.cached), static_cast<std::size_t>(count));
      activity_.prompt_tokens += static_cast<std::uint64_t>(count);
    } else {
      tokens = std::span(s.output.tokens).last(1);
    }
    chunks_.push_back({s.slot, s.cached, tokens});
    chunk_owner_.push_back(i);
    s.cached += static_cast<std::int64_t>(tokens.size());
  }
}

void rollout_engine::draw(const float* logits, std::int64_t width) {
  for (std::size_t row = 0; row < chunk_owner_.size(); ++row) {
    auto& s = active_[chunk_owner_[row]];
    if (s.cached < static_cast<std::int64_t>(s.request.context.size())) continue;  // its prompt is not all in yet
    const std::span from(logits + static_cast<std::int64_t>(row) * width, static_cast<std::size_t>(width));
    if (s.output.tokens.empty()) follow(s.slot, s.cached, from);
    advance(s, from);
  }
  std::erase_if(active_, [](const sequence& s) { return s.slot < 0; });
}

/// Those that waited for this prefill take it over, and go on by themselves.
void rollout_engine::follow(std::int64_t leader, std::int64_t length, std::span<const float> logits) {
  for (auto& s : active_) {
    if (s.leader != leader) continue;
    cache_->copy(leader, s.slot, length);
    s.leader = -1;
    s.cached = length;
    advance(s, logits);
  }
}

/// Draws the next token; gives the slot back if that was the last.
void rollout_engine::advance(sequence& s, std::span<const float> logits) {
  if (!produce(s, logits)) return;
  free_slots_.push_back(s.slot);
  s.slot = -1;
  ++activity_.sequences;
}

/// Draws a sequence's next token; true if that ended it, with its answer sent.
bool rollout_engine::produce(sequence& s, std::span<const float> logits) {
  const auto& params = s.request.sampling;
  const auto uniform = to_unit(derive_seed(s.request.seed, "token", s.output.tokens.size()));
  const auto drawn = sampler_.draw(logits, params, uniform);
  if (!drawn) {
    s.answer.deliver(to_caf(
        error{errc::numeric, "weight version " + std::to_string(activity_.version) + ": " + drawn.error().message}));
    return true;
  }
  s.output.tokens.push_back(drawn->id);
  s.output.logprobs.push_back(drawn->logprob);
  s.output.versions.push_back(activity_.version);
  ++activity_.tokens;
  const bool stop =
      std::find(params.stop_tokens.begin(), params.stop_tokens.end(), drawn->id) != params.stop_tokens.end();
  const auto length = static_cast<std::int64_t>(s.request.context.size() + s.output.tokens.size());
  if (!stop && static_cast<std::int32_t>(s.output.tokens.size()) < params.max_tokens && length < settings_.max_context)
    return false;
  s.output.reason = stop ? finish_reason::stop : finish_reason::length;
  s.answer.deliver(std::move(s.output));
  return true;
}

void rollout_engine::observe() {
  if (!observer_) return;
  activity_.active = active_.size();
  activity_.waiting = waiting_.size();
  observer_(activity_);
}

}  // namespace weir
